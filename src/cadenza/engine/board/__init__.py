"""A simulated board: cards that heat, throttle and fail with the engine's load, shown as amdgpu sysfs and KFD files."""
