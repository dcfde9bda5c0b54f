"""Reading takes memory for the requests, not for the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

READ = """
import json, resource, sys
from servewise.traffic import read_trace
columns = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o"}
read_trace(sys.argv[1], columns=columns, num_requests=10)
scale = 1 if sys.platform == "darwin" else 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
workload = read_trace(sys.argv[2], columns=columns)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
print(json.dumps({"grown_bytes": after - before, "num_requests": workload.num_requests}))
"""


def write_trace(path: Path, num_rows: int, filler: str) -> None:
    with path.open("w") as file:
        file.write("t,prompt,i,o\n")
        file.writelines(f"{row},{filler},{row % 4000 + 1},{row % 300 + 1}\n" for row in range(num_rows))


def test_peak_memory_is_a_fraction_of_a_large_file(tmp_path: Path) -> None:
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    write_trace(small, 100, "x" * 1000)
    write_trace(large, 200_000, "x" * 1000)
    command = [sys.executable, "-c", READ, str(small), str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["num_requests"] == 200_000
    assert measured["grown_bytes"] < 0.5 * large.stat().st_size
