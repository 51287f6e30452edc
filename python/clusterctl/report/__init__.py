"""Reports: the tables of the terminal, the HTML page, JUnit, Prometheus, JSON lines, and views of the history."""
