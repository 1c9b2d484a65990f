"""The answer as one HTML file: no network, light and dark, on screen and on paper."""
