assert __name__ == "ingot.compiler", "import ingot.compiler, not compiler"
