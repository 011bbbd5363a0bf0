"""compare_losses.py WITHOUT WITH [TOLERANCE]: both logs have the same `loss STEP VALUE` lines, values
within the tolerance relative to the larger of 1 and the value (1e-5). Status 1 and a line if not."""
import sys


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file if line.startswith("loss ")]
    return {int(step): float(value) for _, step, value in lines}


def main():
    without, with_llane = read(sys.argv[1]), read(sys.argv[2])
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-5
    if not without or without.keys() != with_llane.keys():
        print(f"WRONG: {len(without)} losses without llane, {len(with_llane)} with it")
        return 1
    worst = max(abs(with_llane[s] - v) / max(1.0, abs(v)) for s, v in without.items())
    print(f"{len(without)} losses, off by {worst:.2g} at most")
    return 0 if worst <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
