"""The report: one HTML page of everything that the committed records say, each number with a link to its record."""
