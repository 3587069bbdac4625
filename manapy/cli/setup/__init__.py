"""Commands that set manapy up for a person or a site."""
