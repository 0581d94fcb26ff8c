"""What is trained when no configuration file is named."""

from pathlib import Path

__all__ = ["DEFAULT"]

DEFAULT = Path(__file__).with_name("mnist.toml")
