def pytest_addoption(parser):
    parser.addoption("--fuzz-cases", type=int, metavar="N", help="make so many changes at random")
