"""The server's other half: jobs, their queue, files, results that are known already, and the fleet. Torch-free."""
