"""The original's entry: python main.py --config=iql --env-config=foraging --seed=1 [with env_args.food=5]."""

import sys

from omg.cli import main

if __name__ == "__main__":
    sys.exit(main())
