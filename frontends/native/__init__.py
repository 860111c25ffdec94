"""Stand-alone programs: the C text around compiled objects, and the C compiler that links them."""
