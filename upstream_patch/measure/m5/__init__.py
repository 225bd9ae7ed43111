"""What an M5's owner runs: is the hardware as the simulator has it, are the kernels right there, how fast are they?"""
