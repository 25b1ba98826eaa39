"""The devices of a run before training: who has enrolled, what they are asked, and what they answered."""
