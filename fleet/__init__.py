"""A fleet of boards that stays between runs. A run borrows boards from the fleet, and gives them back."""

import fedstrata as fedstrata  # first, for a safe sys.path
