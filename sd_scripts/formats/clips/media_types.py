"""The kinds of video files that are read."""

MEDIA_TYPES = {
    **dict.fromkeys((".mp4", ".m4v"), "video/mp4"),
    ".webm": "video/webm",
    ".mov": "video/quicktime",
    ".mkv": "video/x-matroska",
    ".avi": "video/x-msvideo",
    ".flv": "video/x-flv",
    ".wmv": "video/x-ms-wmv",
    **dict.fromkeys((".mpg", ".mpeg"), "video/mpeg"),
}
"""Extension of a video file -> its media type."""
CLIP_SUFFIXES = frozenset(MEDIA_TYPES)
PLAYED = frozenset({".mp4", ".m4v", ".webm", ".mov"})
"""Extensions of video files that browsers play; of the others the page shows the first frame."""
