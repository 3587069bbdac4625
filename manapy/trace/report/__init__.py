"""Writes all of an analysis as one page of HTML."""
