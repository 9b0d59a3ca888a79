"""Models of the image tools that are known by name: size and licence are shown before a download."""

from sd_scripts.options.captioning.known_models import KnownModel

IMAGE_MODELS = (
    KnownModel(
        repo="onnx-community/BiRefNet_lite-ONNX",
        method="background",
        gigabytes=0.22,
        licence="MIT",
        about="Finds what stands in front of the background",
    ),
    KnownModel(
        repo="onnx-community/BiRefNet-ONNX",
        method="background",
        gigabytes=0.97,
        licence="MIT",
        about="As BiRefNet_lite, slower and more accurate",
    ),
    KnownModel(
        repo="opencv/face_detection_yunet",
        method="faces",
        gigabytes=0.0002,
        licence="MIT",
        about="OpenCV's YuNet finds faces",
    ),
    KnownModel(
        repo="opencv/text_detection_ppocr",
        method="text",
        gigabytes=0.0024,
        licence="Apache-2.0",
        about="PP-OCRv3 finds lines of text",
    ),
)
"""The first of each method is its default. Sizes and licences are from the repositories' pages. What somebody trained
BiRefNet on is not all free for commercial use, whatever the licence of its weights."""
MODEL_FILES = {
    "background": "onnx/model.onnx",
    "faces": "face_detection_yunet_2023mar.onnx",
    "text": "text_detection_en_ppocrv3_2023may.onnx",
}
"""The file of a repository that is downloaded."""
