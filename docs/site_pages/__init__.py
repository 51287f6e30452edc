"""Pages of the documentation site that are made from the program itself when the site is built."""
