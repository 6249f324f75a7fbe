"""What spark-submit is given: the analytics programs, with the command line of `python -m analytics`.

Not the package's own `__main__.py`: the folder of a submitted file becomes the first place for imports.
"""

from __future__ import annotations

import sys

from analytics.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
