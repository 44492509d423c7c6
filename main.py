"""The original's entry: python main.py --config=iql --env-config=foraging --seed=1 [with env_args.food=5]."""

from omg.cli import entry

if __name__ == "__main__":
    entry()
