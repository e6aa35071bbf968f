"""A model file into its operator graph: `config.json`, a directory that holds one, or an ONNX file.

Law: a file ends as a graph or as one `ConfigError` that names the file and the field.
"""

from pathlib import Path

import orjson

from pipelines.errors import ConfigError
from pipelines.onnx_file import read_onnx
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import model_from_config
from twin.graph.onnx_graph import graph_from_onnx
from twin.graph.operators import OperatorGraph


def read_graph(path: Path, parallelism: Parallelism | None = None, *, async_scheduling: bool = False) -> OperatorGraph:
    """The graph of one step. An ONNX file is one device's, so it takes no parallelism. Raises ConfigError."""
    split = parallelism or Parallelism()
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.suffix == ".onnx":
            if split != Parallelism():
                raise ValueError("an ONNX file cannot be split over devices")
            return graph_from_onnx(read_onnx(file))
        config = orjson.loads(file.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("model config must be an object")
        return operator_graph(model_from_config(config), split, async_scheduling=async_scheduling)
    except OSError as error:
        raise ConfigError(f"model file {file} cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        split_badly = str(error).startswith("parallelism: ")
        next_step = "split it otherwise" if split_badly else "give the config.json or ONNX file of a known family"
        raise ConfigError(f"model file {file}: {error}; {next_step}") from error
