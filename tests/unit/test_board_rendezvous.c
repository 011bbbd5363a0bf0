/* Proves that ranks find one board, and only their own, whoever dies, lingers or pesters the socket. */
// ALSO: tsan asan
#include "board_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "board_rendezvous.h"

enum { BYTES = 8192, STRANGER = 65534 };

static int count_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

static socklen_t address_of(const char *name, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static int connect_to(const char *name)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int listen_at(const char *name)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, 8) != 0) {
        return -1;
    }
    return fd;
}

static void new_name(char name[LLANE_RENDEZVOUS_NAME_BYTES])
{
    struct llane_board_key key = new_key();
    llane_rendezvous_name(key.comm_id, geteuid(), 2, name);
}

static void rendezvous__name__is_the_keyed_hash_of_user_and_ranks(void **state)
{
    (void)state;
    char name[LLANE_RENDEZVOUS_NAME_BYTES], other[LLANE_RENDEZVOUS_NAME_BYTES];
    const uint64_t id[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    llane_rendezvous_name(id, 1000, 4, name);
    /* `openssl mac -macopt hexkey:00..0f -macopt size:8 SIPHASH` of the two 16-byte messages. */
    assert_string_equal(name, "llane-board-a187131211efd42da7670704c54227a4");
    llane_rendezvous_name(id, 1001, 4, other);
    assert_string_not_equal(name, other);
    llane_rendezvous_name(id, 1000, 5, other);
    assert_string_not_equal(name, other);
    llane_rendezvous_name((const uint64_t[2]){id[0], id[1] + 1}, 1000, 4, other);
    assert_string_not_equal(name, other);
}

static void rendezvous__memory__is_for_its_user_alone(void **state)
{
    (void)state;
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    struct llane_board_key key = new_key();
    struct llane_rendezvous meet;
    struct stat file;
    llane_rendezvous_name(key.comm_id, geteuid(), 2, name);
    assert_int_equal(llane_rendezvous_find(name, 4096, NULL, &meet), 0);
    assert_int_equal(fstat(meet.memory_fd, &file), 0);
    assert_int_equal(file.st_mode & 07777, 0600);
    assert_int_equal(file.st_nlink, 0);
    assert_true(fcntl(meet.memory_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(meet.listener, F_GETFD) & FD_CLOEXEC);
    llane_rendezvous_end(&meet);
}

/* ---- who finds whom ---- */

static void rendezvous__two_groups_at_once__do_not_mix(void **state)
{
    (void)state;
    struct test_rank groups[3][2];
    struct llane_board_key key = new_key();
    init_ranks(groups[0], key, 2);
    init_ranks(groups[1], new_key(), 2);
    init_ranks(groups[2], key, 2);
    for (int r = 0; r < 2; r++) {
        groups[2][r].args.n_ranks = 3; /* the same id, another size: waits for its third */
        for (int g = 0; g < 3; g++) {
            snprintf(groups[g][r].record, sizeof(groups[g][r].record), "group %d", g);
            start_rank(&groups[g][r], arrive);
        }
    }
    join_ranks(groups[0], 2);
    join_ranks(groups[1], 2);
    for (int g = 0; g < 2; g++) {
        char record[64];
        for (int r = 0; r < 2; r++) {
            assert_true(groups[g][r].rc == 0 && groups[g][r].verdict.is_yes);
            assert_int_equal(llane_board_record(groups[g][r].board, 0, 1 - r, record, 64), 0);
            assert_string_equal(record, groups[g][r].record);
        }
        leave_ranks(groups[g], 2);
    }
    for (int r = 0; r < 2; r++) {
        atomic_store(&groups[2][r].cancel, 1);
    }
    join_ranks(groups[2], 2);
    assert_int_equal(groups[2][0].rc, LLANE_ECANCELED);
    leave_ranks(groups[2], 2);
}

static void rendezvous__key_used_again_after_leave__gets_a_new_board(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    struct llane_board_key key = new_key();
    int n_descriptors = count_descriptors();
    for (int i = 0; i < 3; i++) {
        init_ranks(ranks, key, 2);
        start_rank(&ranks[0], arrive);
        start_rank(&ranks[1], arrive);
        join_ranks(ranks, 2);
        assert_true(ranks[0].verdict.is_yes && ranks[1].verdict.is_yes);
        llane_board_vote(ranks[0].board, 1, LLANE_BOARD_REASON_FIRST, NULL, 0);
        leave_ranks(ranks, 2);
    }
    assert_int_equal(count_descriptors(), n_descriptors);
}

static int arrive_as_process(void *arg)
{
    struct test_rank *rank = arg;
    rank->args.record = rank->record;
    arrive(rank);
    int is_good = rank->rc == 0 && rank->verdict.is_yes;
    llane_board_leave(rank->board);
    return is_good ? 0 : 1;
}

static void rendezvous__second_process_group_with_the_same_key__meets_too(void **state)
{
    (void)state;
    struct test_rank ranks[3];
    pid_t children[3];
    struct llane_board_key key = new_key();
    for (int group = 0; group < 2; group++) {
        init_ranks(ranks, key, 3);
        for (int r = 0; r < 3; r++) {
            children[r] = fork_process(arrive_as_process, &ranks[r]);
        }
        for (int r = 0; r < 3; r++) {
            assert_int_equal(exit_status(children[r]), 0);
        }
    }
}

static int connect_from_new_namespace(void *arg)
{
    return unshare(CLONE_NEWNET) != 0 ? 77 : connect_to(arg) == -1 ? 0 : 1;
}

static void rendezvous__another_network_namespace__finds_nobody(void **state)
{
    (void)state;
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    struct llane_rendezvous meet;
    new_name(name);
    assert_int_equal(llane_rendezvous_find(name, BYTES, NULL, &meet), 0);
    int status = exit_status(fork_process(connect_from_new_namespace, name));
    llane_rendezvous_end(&meet);
    if (status == 77) {
        print_message("# no permission for a network namespace\n");
        skip();
    }
    assert_int_equal(status, 0);
}

/* ---- creators that die ---- */

struct victim {
    struct test_rank rank;
    _Atomic int has_joined;
};

static int join_and_stay(void *arg)
{
    struct victim *victim = arg;
    victim->rank.args.record = victim->rank.record;
    int rc = llane_board_join(&victim->rank.args, NULL, &victim->rank.board);
    atomic_store(&victim->has_joined, rc == 0 ? 1 : 2);
    struct llane_verdict verdict;
    return llane_board_wait(victim->rank.board, LLANE_BOARD_ARRIVAL, NULL, &verdict);
}

static void rendezvous__creator_killed_before_anyone_came__next_one_creates(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    struct victim *victim = shared_memory(sizeof(*victim));
    init_ranks(ranks, new_key(), 2);
    victim->rank = ranks[0];
    pid_t child = fork_process(join_and_stay, victim);
    await(&victim->has_joined, 1);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    start_rank(&ranks[0], arrive);
    start_rank(&ranks[1], arrive);
    join_ranks(ranks, 2);
    assert_true(ranks[0].verdict.is_yes && ranks[1].verdict.is_yes);
    leave_ranks(ranks, 2);
    munmap(victim, sizeof(*victim));
}

static void rendezvous__creator_killed_with_ranks_waiting__they_read_that_it_died(void **state)
{
    (void)state;
    struct test_rank ranks[3];
    struct victim *victim = shared_memory(sizeof(*victim));
    init_ranks(ranks, new_key(), 3);
    victim->rank = ranks[0];
    pid_t child = fork_process(join_and_stay, victim);
    await(&victim->has_joined, 1);
    assert_int_equal(llane_board_join(&ranks[1].args, NULL, &ranks[1].board), 0);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    struct llane_verdict verdict;
    assert_int_equal(llane_board_wait(ranks[1].board, LLANE_BOARD_ARRIVAL, NULL, &verdict), 0);
    assert_false(verdict.is_yes);
    assert_int_equal(verdict.reason, LLANE_BOARD_DIED);
    assert_int_equal(verdict.rank, 0);
    /* The late one finds no server, makes a board of its own and can only wait there. */
    start_rank(&ranks[2], arrive);
    sleep_ms(100);
    atomic_store(&ranks[2].cancel, 1);
    pthread_join(ranks[2].thread, NULL);
    assert_int_equal(ranks[2].rc, LLANE_ECANCELED);
    llane_board_leave(ranks[1].board);
    llane_board_leave(ranks[2].board);
    munmap(victim, sizeof(*victim));
}

/* ---- clients that misbehave ---- */

struct pest {
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    _Atomic int stop;
    int n_connected;
};

/* Connects without end, some speak out of turn, some hang up, some stay. */
static void *pester(void *arg)
{
    struct pest *pest = arg;
    int kept[100];
    int n_kept = 0;
    for (unsigned i = 0; !atomic_load(&pest->stop); i++) {
        int fd = connect_to(pest->name);
        if (fd < 0) {
            sched_yield();
            continue;
        }
        pest->n_connected++;
        if (i % 3 == 0) {
            (void)!send(fd, "rubbish", i % 8, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        if (i % 5 == 0 && n_kept < 100) {
            kept[n_kept++] = fd;
        } else {
            close(fd);
        }
    }
    while (n_kept > 0) {
        close(kept[--n_kept]);
    }
    return NULL;
}

static void rendezvous__flood_of_connections__ranks_meet_all_the_same(void **state)
{
    (void)state;
    struct test_rank ranks[3];
    struct pest pests[2] = {0};
    pthread_t threads[2];
    struct llane_board_key key = new_key();
    init_ranks(ranks, key, 3);
    start_rank(&ranks[0], arrive);
    for (int i = 0; i < 2; i++) {
        llane_rendezvous_name(key.comm_id, geteuid(), 3, pests[i].name);
        assert_int_equal(pthread_create(&threads[i], NULL, pester, &pests[i]), 0);
    }
    sleep_ms(200);
    start_rank(&ranks[1], arrive);
    start_rank(&ranks[2], arrive);
    join_ranks(ranks, 3);
    for (int i = 0; i < 2; i++) {
        atomic_store(&pests[i].stop, 1);
        pthread_join(threads[i], NULL);
    }
    for (int r = 0; r < 3; r++) {
        assert_true(ranks[r].rc == 0 && ranks[r].verdict.is_yes);
    }
    assert_true(pests[0].n_connected + pests[1].n_connected > 100);
    leave_ranks(ranks, 3);
}

static int has_descriptor(int fd)
{
    char byte;
    char control[256];
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    for (int ms = 0; ms < 5000; ms++) {
        ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
        if (n >= 0 || errno != EAGAIN) {
            return n > 0 && message.msg_controllen > 0;
        }
        sleep_ms(1);
    }
    return 2; /* no answer at all */
}

struct stranger {
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    _Atomic int is_ready;
};

static int connect_as_friend(void *arg)
{
    struct stranger *stranger = arg;
    int fd = connect_to(stranger->name);
    return fd < 0 ? 98 : has_descriptor(fd);
}

static int connect_as_stranger(void *arg)
{
    return setresuid(STRANGER, STRANGER, STRANGER) != 0 ? 99 : connect_as_friend(arg);
}

static void wait_for_others(struct test_rank *rank)
{
    rank->rc = llane_board_wait(rank->board, LLANE_BOARD_ARRIVAL, &rank->cancel, &rank->verdict);
}

static void rendezvous__another_user_connects__gets_nothing(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("# only root can play another user\n");
        skip();
    }
    struct test_rank ranks[2];
    struct stranger stranger = {.is_ready = 0};
    init_ranks(ranks, new_key(), 2);
    llane_rendezvous_name(ranks[0].args.key.comm_id, geteuid(), 2, stranger.name);
    assert_int_equal(llane_board_join(&ranks[0].args, NULL, &ranks[0].board), 0);
    pid_t enemy = fork_process(connect_as_stranger, &stranger);
    pid_t friend = fork_process(connect_as_friend, &stranger);
    start_rank(&ranks[0], wait_for_others);
    assert_int_equal(exit_status(enemy), 0);
    assert_int_equal(exit_status(friend), 1);
    atomic_store(&ranks[0].cancel, 1);
    join_ranks(ranks, 1);
    leave_ranks(ranks, 1);
}

/* ---- servers that misbehave: a rank alone must neither take what they offer nor be stuck ---- */

static int listen_as_stranger(void *arg)
{
    struct stranger *stranger = arg;
    int fd = setresuid(STRANGER, STRANGER, STRANGER) == 0 ? listen_at(stranger->name) : -1;
    atomic_store(&stranger->is_ready, fd >= 0 ? 1 : 2);
    while (pause() != 0) {
    }
    return 0;
}

static void rendezvous__another_user_holds_the_name__rank_waits_until_it_is_free(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("# only root can play another user\n");
        skip();
    }
    struct test_rank ranks[1];
    struct stranger *stranger = shared_memory(sizeof(*stranger));
    init_ranks(ranks, new_key(), 1);
    llane_rendezvous_name(ranks[0].args.key.comm_id, geteuid(), 1, stranger->name);
    pid_t child = fork_process(listen_as_stranger, stranger);
    await(&stranger->is_ready, 1);
    start_rank(&ranks[0], arrive);
    sleep_ms(100);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    join_ranks(ranks, 1);
    assert_true(ranks[0].rc == 0 && ranks[0].verdict.is_yes);
    leave_ranks(ranks, 1);
    munmap(stranger, sizeof(*stranger));
}

enum offer {
    OFFER_NOTHING,
    OFFER_HANG_UP,
    OFFER_UNSEALED,
    OFFER_WRONG_SIZE,
    OFFER_DEVICE,
    OFFER_MANY,
    OFFER_SILENCE,
    OFFER_GARBAGE, /* the right size, sealed, all zero */
    N_OFFERS
};

static int make_offer(enum offer offer)
{
    if (offer == OFFER_DEVICE) {
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    int fd = memfd_create("offer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    off_t bytes = (off_t)llane_board_bytes() - (offer == OFFER_WRONG_SIZE ? 4096 : 0);
    if (ftruncate(fd, bytes) != 0 ||
        (offer != OFFER_UNSEALED && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

struct server {
    int listener;
    enum offer offer;
    _Atomic int n_served;
    _Atomic int stop;
};

static void serve_badly(struct server *server, int client)
{
    char byte = 'x';
    int n_fds = server->offer == OFFER_MANY ? 3 : server->offer >= OFFER_UNSEALED ? 1 : 0;
    int fds[3];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } control = {.bytes = {0}};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (n_fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        for (int i = 0; i < n_fds; i++) {
            fds[i] = make_offer(server->offer == OFFER_MANY ? OFFER_UNSEALED : server->offer);
        }
        memcpy(CMSG_DATA(rights), fds, (size_t)n_fds * sizeof(int));
    }
    (void)!sendmsg(client, &message, MSG_NOSIGNAL);
    for (int i = 0; i < n_fds; i++) {
        close(fds[i]);
    }
}

static void *run_server(void *arg)
{
    struct server *server = arg;
    int kept = -1;
    while (!atomic_load(&server->stop)) {
        int client = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) {
            sleep_ms(1);
            continue;
        }
        if (server->offer == OFFER_SILENCE) {
            kept = client;
        } else {
            if (server->offer != OFFER_HANG_UP) {
                serve_badly(server, client);
            }
            close(client);
        }
        atomic_fetch_add(&server->n_served, 1);
    }
    if (kept >= 0) {
        close(kept);
    }
    close(server->listener);
    return NULL;
}

/* Returns what the rank's join and wait returned when the server had ended. */
static int meet_bad_server(enum offer offer)
{
    struct test_rank ranks[1];
    struct server server = {.offer = offer};
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    pthread_t thread;
    int n_descriptors = count_descriptors();
    init_ranks(ranks, new_key(), 1);
    llane_rendezvous_name(ranks[0].args.key.comm_id, geteuid(), 1, name);
    server.listener = listen_at(name);
    assert_true(server.listener >= 0);
    assert_int_equal(fcntl(server.listener, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, run_server, &server), 0);
    start_rank(&ranks[0], arrive);
    int enough = offer == OFFER_SILENCE || offer == OFFER_GARBAGE ? 1 : 3;
    for (int ms = 0; atomic_load(&server.n_served) < enough; ms++) {
        assert_true(ms < 30000);
        sleep_ms(1);
    }
    sleep_ms(10);
    atomic_store(&server.stop, 1);
    pthread_join(thread, NULL);
    join_ranks(ranks, 1);
    assert_int_equal(ranks[0].verdict.is_yes, ranks[0].rc == 0);
    leave_ranks(ranks, 1);
    assert_int_equal(count_descriptors(), n_descriptors);
    return ranks[0].rc;
}

static void rendezvous__server_offers_rubbish__rank_goes_on_and_creates_later(void **state)
{
    (void)state;
    for (enum offer offer = OFFER_NOTHING; offer < OFFER_GARBAGE; offer++) {
        assert_int_equal(meet_bad_server(offer), 0);
    }
}

static void rendezvous__memory_is_no_board__join_is_refused(void **state)
{
    (void)state;
    assert_int_equal(meet_bad_server(OFFER_GARBAGE), LLANE_EREFUSED);
}

static void rendezvous__server_never_answers__cancel_ends_the_wait(void **state)
{
    (void)state;
    struct test_rank ranks[1];
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    init_ranks(ranks, new_key(), 1);
    llane_rendezvous_name(ranks[0].args.key.comm_id, geteuid(), 1, name);
    int listener = listen_at(name);
    assert_true(listener >= 0);
    start_rank(&ranks[0], arrive);
    sleep_ms(50);
    atomic_store(&ranks[0].cancel, 1);
    join_ranks(ranks, 1);
    assert_int_equal(ranks[0].rc, LLANE_ECANCELED);
    close(listener);
}

static int stay(void *arg)
{
    (void)arg;
    while (pause() != 0) {
    }
    return 0;
}

static void rendezvous__child_keeps_the_socket__clients_are_turned_away(void **state)
{
    (void)state;
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    struct llane_rendezvous first, second;
    _Atomic int canceled = 1;
    new_name(name);
    assert_int_equal(llane_rendezvous_find(name, BYTES, NULL, &first), 0);
    assert_true(first.is_creator);
    pid_t child = fork_process(stay, NULL);
    llane_rendezvous_end(&first);
    assert_int_equal(connect_to(name), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_int_equal(llane_rendezvous_find(name, BYTES, &canceled, &second), LLANE_ECANCELED);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    assert_int_equal(llane_rendezvous_find(name, BYTES, NULL, &second), 0);
    assert_true(second.is_creator);
    llane_rendezvous_end(&second);
    llane_rendezvous_end(&second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendezvous__name__is_the_keyed_hash_of_user_and_ranks),
        cmocka_unit_test(rendezvous__second_process_group_with_the_same_key__meets_too),
        cmocka_unit_test(rendezvous__creator_killed_before_anyone_came__next_one_creates),
        cmocka_unit_test(rendezvous__creator_killed_with_ranks_waiting__they_read_that_it_died),
        cmocka_unit_test(rendezvous__another_user_connects__gets_nothing),
        cmocka_unit_test(rendezvous__another_user_holds_the_name__rank_waits_until_it_is_free),
        cmocka_unit_test(rendezvous__child_keeps_the_socket__clients_are_turned_away),
        cmocka_unit_test(rendezvous__another_network_namespace__finds_nobody),
        cmocka_unit_test(rendezvous__memory__is_for_its_user_alone),
        cmocka_unit_test(rendezvous__two_groups_at_once__do_not_mix),
        cmocka_unit_test(rendezvous__key_used_again_after_leave__gets_a_new_board),
        cmocka_unit_test(rendezvous__flood_of_connections__ranks_meet_all_the_same),
        cmocka_unit_test(rendezvous__server_offers_rubbish__rank_goes_on_and_creates_later),
        cmocka_unit_test(rendezvous__memory_is_no_board__join_is_refused),
        cmocka_unit_test(rendezvous__server_never_answers__cancel_ends_the_wait),
    };
    alarm(100); /* a hang is a failure too */
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
