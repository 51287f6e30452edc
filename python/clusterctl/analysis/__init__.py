"""Results in, verdicts out: references, outliers within a run, and the search for who makes a job hang. No I/O."""
