"""`mlx_lm.server` behind the BLAS that ofa loads; arguments are the server's own."""

from ofa.engine.mlx.blas import load_blas


def main() -> None:
    """Load the BLAS before anything imports mlx, then run the server."""
    load_blas()
    from mlx_lm.server import main as serve

    serve()


if __name__ == "__main__":
    main()
