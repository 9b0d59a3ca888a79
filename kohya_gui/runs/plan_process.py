"""The resident process that computes the plans of the page."""

from kohya_gui.server.resident_process import LONGEST, ResidentProcess

PROGRAM = "sd_scripts.planning.serve"


class PlanProcess(ResidentProcess):
    """Answers saved settings with the plan of their run."""

    def __init__(self, longest: float = LONGEST) -> None:
        super().__init__(PROGRAM, longest)
