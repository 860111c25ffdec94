assert __name__ == "ingot.frontends", "import ingot.frontends, not frontends"
