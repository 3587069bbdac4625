// state_cxx.cpp - exceptions thrown and caught after a restart, thread-local destructors, standard threads.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

static int failures;
#define CHECK(c) do { if (!(c)) { std::printf("FAILED line %d: %s\n", __LINE__, #c); failures++; } } while (0)

static int destroyed;
struct Local { int value = 3; ~Local() { destroyed += value; } };
static thread_local Local local;

struct Guard { int &n; ~Guard() { n++; } };

static int thrower(int depth, int &unwound) {
    Guard g{unwound};
    if (depth == 0) throw std::out_of_range("deep");
    return thrower(depth - 1, unwound) + 1;
}

int main() {
    std::map<std::string, int> map{{"a", 1}, {"b", 2}};
    std::mutex mutex;
    std::condition_variable changed;
    bool go = false;
    auto waiting = std::async(std::launch::async, [&] {
        local.value = 5;
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return go; });
        throw std::runtime_error("from a thread");
    });
    auto timed = std::async(std::launch::async, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); return 7; });
    std::exception_ptr kept;
    try { throw std::logic_error("kept"); } catch (...) { kept = std::current_exception(); }

    std::cout << "ready" << std::endl;
    while (!std::filesystem::exists(std::getenv("STATE_GO")))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));

    { std::lock_guard lock(mutex); go = true; }
    changed.notify_all();
    try { waiting.get(); CHECK(false); }
    catch (const std::runtime_error &e) { CHECK(std::string(e.what()) == "from a thread"); }
    CHECK(destroyed == 5);
    CHECK(timed.get() == 7);
    int unwound = 0;
    try { thrower(20, unwound); CHECK(false); }
    catch (const std::exception &e) { CHECK(std::string(e.what()) == "deep"); }
    CHECK(unwound == 21);
    try { std::rethrow_exception(kept); } catch (const std::logic_error &e) { CHECK(std::string(e.what()) == "kept"); }
    try { (void)map.at("z"); CHECK(false); } catch (const std::out_of_range &) {}
    CHECK(map["b"] == 2 && dynamic_cast<std::logic_error *>(new std::out_of_range("x")));
    std::cout << (failures ? "failed" : "ok") << std::endl;
    return failures != 0;
}
