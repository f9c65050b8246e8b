"""What a run needs, in figures: bytes, floating-point operations, seconds. Nothing here touches a device."""
