"""Models of the image tools in miniature: red squares are faces, green ones text, and blue is the background."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

from sd_scripts.tools.images.__main__ import COMMAND

FACE = 32
"""Pixels a side of every face that the detector finds."""
STRIDES = (8, 16, 32)
CHANNELS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
GREY = (128, 128, 128)
Floats = NDArray[np.float32]


def edit(*flags: object) -> int:
    """Run the command and return its exit status."""
    try:
        return COMMAND.main("images", [str(flag) for flag in flags])
    except SystemExit as error:  # from the parser
        return int(str(error.code))


def draw(path: Path, size: tuple[int, int] = (200, 160), *, background: object = GREY, **squares: object) -> Path:
    """Write an image with squares: colour=[(left, top, right, bottom), ...]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, background)  # type: ignore[arg-type]
    pen = ImageDraw.Draw(image)
    for colour, boxes in squares.items():
        for box in boxes:  # type: ignore[attr-defined]
            pen.rectangle(box, fill=colour)
    image.save(path)
    return path


def write_yunet(file: Path) -> Path:
    """Write a detector with YuNet's inputs and outputs that finds red squares of 32 pixels, exactly if their left and
    top are 4, 12, 20, ..."""
    nodes, constants, outputs = [], [], []

    def constant(name: str, value: Floats | NDArray[np.int64]) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    for stride in STRIDES:
        for name, channels in CHANNELS.items():
            weights = np.zeros((channels, 3, FACE, FACE), np.float32)
            biases = np.zeros(channels, np.float32)
            if name == "cls":
                biases[:] = -12 if stride == 8 else -30
                if stride == 8:  # of blue, green, red
                    weights[0, :, :, :] = np.array([-8, -8, 16], np.float32)[:, None, None] / (255 * FACE * FACE)
            if name == "obj":
                biases[:] = 30
            if name == "bbox":
                biases[:] = [0.5, 0.5, np.log(FACE / stride), np.log(FACE / stride)]
            prefix = f"{name}_{stride}"
            pads = [(FACE - stride) // 2] * 4
            nodes += [
                helper.make_node(
                    "Conv",
                    ["input", constant(f"{prefix}_w", weights), constant(f"{prefix}_b", biases)],
                    [f"{prefix}_c"],
                    kernel_shape=[FACE, FACE],
                    strides=[stride, stride],
                    pads=pads,
                ),
                helper.make_node("Transpose", [f"{prefix}_c"], [f"{prefix}_t"], perm=[0, 2, 3, 1]),
                helper.make_node(
                    "Reshape",
                    [f"{prefix}_t", constant(f"{prefix}_s", np.array([1, -1, channels], np.int64))],
                    [prefix if channels > 1 else f"{prefix}_l"],
                ),
            ]
            if channels == 1:
                nodes.append(helper.make_node("Sigmoid", [f"{prefix}_l"], [prefix]))
            outputs.append(prefix)
    order = [f"{name}_{stride}" for name in CHANNELS for stride in STRIDES]
    graph = helper.make_graph(
        nodes,
        "yunet",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 640, 640])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "cells", CHANNELS[name.partition("_")[0]]])
            for name in order
        ],
        constants,
    )
    return _save(graph, file)


def write_plane(file: Path, weights: tuple[float, float, float], bias: float, side: int | str = "side") -> Path:
    """Write a model whose output is one plane: a sigmoid of weighted channels of its input."""
    kernel = np.array(weights, np.float32).reshape(1, 3, 1, 1)
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["logits"], kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["logits"], ["plane"]),
    ]
    sides = [side, side] if isinstance(side, int) else ["height", "width"]
    graph = helper.make_graph(
        nodes,
        "plane",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, *sides])],
        [helper.make_tensor_value_info("plane", TensorProto.FLOAT, [1, 1, *sides])],
        [numpy_helper.from_array(kernel, "kernel"), numpy_helper.from_array(np.array([bias], np.float32), "bias")],
    )
    return _save(graph, file)


def write_texts(file: Path) -> Path:
    """Write a detector of text that marks green; it reads blue, green, red with ImageNet's values."""
    return write_plane(file, (-6, 9, -6), -12)


def write_foreground(file: Path, side: int = 64) -> Path:
    """Write a model that takes blue for the background; it reads red, green, blue with ImageNet's values."""
    return write_plane(file, (4, 4, -6), 6, side)


def _save(graph: onnx.GraphProto, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), file)
    return file
