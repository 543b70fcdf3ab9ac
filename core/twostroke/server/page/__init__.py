"""The page at `/`: a chat, and beside it the life of each answer. It asks the server's own routes.

Everything in `static` is served as it is written there: modules that a browser reads without a
bundler. What stands in `static/vendor` comes from the npm packages that `package.json` pins.
"""

from twostroke.server.page.answering import SURFACE as SURFACE
