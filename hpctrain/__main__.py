"""``python -m hpctrain``: see `hpctrain.cli`."""

import sys

from hpctrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
