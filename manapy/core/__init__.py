"""What several packages need: errors, files, /proc, units, and authenticated connections.

Core imports no other package of manapy.
"""
