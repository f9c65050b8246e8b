"""Write the tables of docs/scaling.md anew from `rl.arithmetic.scaling`."""

from pathlib import Path

from rl.arithmetic.scaling import fill

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"

if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
