import sys

from .output import main

sys.exit(main(sys.argv[1:]))
