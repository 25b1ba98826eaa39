"""The devices of a run before training: enrolment, questions and answers."""
