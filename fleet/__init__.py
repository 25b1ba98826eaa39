"""A fleet of boards that stays: it lends its boards to runs, and gets them back."""
