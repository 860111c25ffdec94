assert __name__ == "ingot.runtime", "import ingot.runtime, not runtime"
