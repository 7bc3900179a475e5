"""How properties are tested: no deadlines, since a busy machine is no defect."""

from hypothesis import settings

settings.register_profile("cadenza", deadline=None)
settings.load_profile("cadenza")
