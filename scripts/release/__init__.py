"""What a release needs: `make release-check` runs the check, recipe.yaml is a recipe for conda-forge."""
