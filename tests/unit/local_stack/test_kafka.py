from local_stack.kafka import _new_cluster_id


def test_new_cluster_id_never_looks_like_an_option() -> None:
    ids = [_new_cluster_id() for _ in range(500)]
    assert all(len(one) == 22 and one[0] != "-" for one in ids)
