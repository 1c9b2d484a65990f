"""What each family of models means by the keys of its config.json: one function a family."""
