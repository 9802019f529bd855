"""`python -m minrl` lists the programs, `python -m minrl NAME ...` runs one."""

from minrl.scripts import main, run_main

if __name__ == "__main__":
    run_main(main)
