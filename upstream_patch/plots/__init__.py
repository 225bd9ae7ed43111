"""Plots of the committed records: what they show (`figures`), the SVG of it (`draw`), and the files (`files`)."""
