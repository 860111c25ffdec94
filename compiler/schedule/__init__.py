"""How a kernel is computed: tensor level in, loop level out. `schedule` is the entry; recipes decide."""

from ingot.compiler.schedule.choose import RECIPES, schedule
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions

__all__ = ["RECIPES", "ScheduleOptions", "Scheduled", "schedule"]
