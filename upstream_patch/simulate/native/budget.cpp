// Kernels that do not end: a budget of steps for a block, and one of time for a launch, which also ends loops that touch no
// memory.
#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

namespace lane_sim {

namespace {

constexpr unsigned kTurn = 1 << 20; // steps after which another warp has its turn: this one may be polling
constexpr double kGrace = 0.25; // seconds in which a lane that touches memory finds out by itself

pthread_t launching;
itimerval kept_timer;
struct sigaction kept_alarm;

timeval interval(double seconds) {
  timeval result = {};
  result.tv_sec = static_cast<decltype(result.tv_sec)>(seconds);
  result.tv_usec = static_cast<decltype(result.tv_usec)>((seconds - static_cast<double>(result.tv_sec)) * 1e6);
  return result;
}

// Where a lane is, as the report says it.
void place_of(const Lane& lane, char* to, size_t size) {
  char where[300];
  if (lane.state == State::done) {
    snprintf(to, size, "have ended");
  } else if (lane.state == State::ready) {
    lane.last.describe(where, sizeof where);
    snprintf(to, size, lane.last.id == 0 ? "run" : "run, last at %s", where);
  } else {
    snprintf(to, size, "wait at %s (line %d)", lane.what, lane.site.line);
  }
}

// Every lane, in groups of those at the same place.
void say_lanes(char* to, size_t size) {
  bool told[kMaxLanes] = {};
  size_t used = 0;
  to[0] = 0;
  for (unsigned i = 0; i < engine.lane_count && used < size; ++i) {
    if (told[i]) {
      continue;
    }
    char mine[400], other[400];
    place_of(engine.lanes[i], mine, sizeof mine);
    unsigned count = 0;
    for (unsigned j = i; j < engine.lane_count; ++j) {
      place_of(engine.lanes[j], other, sizeof other);
      if (!told[j] && strcmp(mine, other) == 0) {
        told[j] = true;
        ++count;
      }
    }
    const int length = count == 1
        ? snprintf(to + used, size - used, "; lane %u: %s", i, mine)
        : snprintf(to + used, size - used, "; lane %u and %u more: %s", i, count - 1, mine);
    used += static_cast<size_t>(length);
  }
}

// The system may give the signal to any thread.
void on_alarm(int number, siginfo_t*, void* context) {
  if (pthread_equal(pthread_self(), launching) == 0) {
    pthread_kill(launching, number);
    return;
  }
  if (engine.late == 0) {
    engine.late = 1; // the lane's next step sees it: it may be in the middle of the engine's work
  } else if (engine.current != nullptr && !engine.stopped) {
    char lanes[700], last[304] = "";
    say_lanes(lanes, sizeof lanes);
    if (engine.current->last.id != 0) { // its place, if the alarm came while the engine was at work for it
      engine.current->last.describe(last, sizeof last - 4);
      strcat(last, " | ");
    }
    fail_at("endless", pc_of(context), "%sa loop without end: the launch has run for %g s%s", last, engine.config.seconds,
            lanes);
  }
}

} // namespace

void fail_endless(const char* why) {
  char lanes[700], here[300];
  say_lanes(lanes, sizeof lanes);
  const Lane& lane = *engine.current;
  if (lane.last.id == 0) {
    fail("endless", lane.site, "no end after %s%s", why, lanes);
  } else {
    lane.last.describe(here, sizeof here);
    fail("endless", Site{"", 0}, "%s | no end after %s%s", here, why, lanes);
  }
}

void Engine::step() {
  char why[100];
  if (engine.late != 0) {
    snprintf(why, sizeof why, "%g s", config.seconds);
    fail_endless(why);
  } else if (++steps > config.steps) {
    snprintf(why, sizeof why, "%llu steps of one block", static_cast<unsigned long long>(config.steps));
    fail_endless(why);
  }
}

void Engine::touch(Where where) {
  current->last = where;
  step();
  if (++turn == kTurn) {
    turn = 0;
    gave_way = true;
    give_way();
  }
}

void Engine::preempt(Where where) {
  touch(where);
  if (config.order == kRandom && random() % 32 == 0) {
    give_way();
  }
}

// Time in this process: another one's work on the machine takes nothing away.
void budget_begin_launch() {
  launching = pthread_self();
  engine.late = 0;
  engine.turn = 0;
  engine.gave_way = false;
  struct sigaction action = {};
  action.sa_sigaction = on_alarm;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  sigaction(SIGVTALRM, &action, &kept_alarm);
  itimerval timer = {};
  timer.it_value = interval(engine.config.seconds);
  timer.it_interval = interval(kGrace);
  setitimer(ITIMER_VIRTUAL, &timer, &kept_timer);
}

void budget_end_launch() {
  setitimer(ITIMER_VIRTUAL, &kept_timer, nullptr);
  engine.late = 0;
  // A last alarm may be on its way to another thread, and the default is to end the process.
  if ((kept_alarm.sa_flags & SA_SIGINFO) != 0 || kept_alarm.sa_handler != SIG_DFL) {
    sigaction(SIGVTALRM, &kept_alarm, nullptr);
  }
}

} // namespace lane_sim
