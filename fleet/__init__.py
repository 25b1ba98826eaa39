"""A fleet of boards that stays between runs. A run borrows boards from the fleet, and gives them back."""
