"""The verbs and the policy. Decides and records; never knows what a container is."""
