"""Each module measures the rows of one suite: `run(row, setting) -> Result`."""
