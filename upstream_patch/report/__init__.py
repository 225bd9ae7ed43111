"""The report: one HTML page of what the committed records say, each number with a link to its record."""
