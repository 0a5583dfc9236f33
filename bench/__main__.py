import sys

from rmemcached.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
