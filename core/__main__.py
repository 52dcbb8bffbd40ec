"""`python -m pagedattn`"""

from pagedattn.cli import main

main()
