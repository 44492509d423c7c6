"""The original's entry: python main.py --config=iql --env-config=foraging --seed=1 [with env_args.food=5]."""

from omg.__main__ import run

if __name__ == "__main__":
    run()
